/** Languages that are told apart where the script does not: each has its stop words and its suffixes. */
export type Language = 'en' | 'de' | 'fr' | 'es' | 'it' | 'pt' | 'nl' | 'ru' | 'ar' | 'hi'

/**
 * Words that carry no meaning of their own, folded (`foldWord` of `text.ts`). They also tell the languages written in
 * Latin apart. What is left of a word cut at an apostrophe (`don` `t`, `l` `d` `qu`) belongs here.
 */
export const stopWords: Readonly<Record<Language, ReadonlySet<string>>> = {
  en: list(`a about above after again against all am an and any are aren as at be because been before being below
    between both but by can cannot could couldn d did didn do does doesn doing don down during each few for from further
    had hadn has hasn have haven having he her here hers herself him himself his how i if in into is isn it its itself
    just ll m me more most mustn my myself no nor not of off on once only or other our ours ourselves out over own re s
    same shan she should shouldn so some such t than that the their theirs them themselves then there these they this
    those through to too under until up ve very was wasn we were weren what when where which while who whom why will
    with won would wouldn you your yours yourself yourselves`),
  de: list(`aber alle allem allen aller alles als also am an ander andere anderen anderer anderes auch auf aus bei beim
    bin bis bist da damit dann das dass dazu dein deine dem den denn der des dessen die dies diese diesem diesen dieser
    dieses doch dort du durch ein eine einem einen einer eines er es etwas euch euer eure fur gegen hab habe haben hat
    hatte hatten hier hin hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in ins ist ja jede jedem jeden jeder
    jedes jener kann kein keine keinem keinen keiner konnen konnte mein meine mich mir mit muss mussen nach nicht nichts
    noch nun nur ob oder ohne sehr sein seine seinem seinen seiner sich sie sind so soll sollte sondern uber um und uns
    unser unsere unter viel vom von vor wahrend war waren warum was weil welche welchem welchen welcher welches wenn wer
    werde werden wie wieder will wir wird wirst wo woher wollen worden wurde wurden zu zum zur zwar zwischen`),
  fr: list(`a ai ainsi alors apres as au aucun aucune aussi autre autres aux avant avec avoir c car ce ceci cela celle
    celles celui ces cet cette ceux chaque chez comme comment d dans de des deux doit donc dont du elle elles en encore
    entre est et etaient etait etant ete etre eu eux fait faut il ils j je jusqu l la laquelle le lequel les lesquels
    leur leurs lors lui m ma mais me meme mes moi mon n ne ni nos notre nous on ont ou par parce pas pendant peu peut
    plus pour pourquoi puis qu quand que quel quelle quelles quels qui quoi s sa sans se sera ses si son sont sous sur t
    ta te tes toi ton tous tout toute toutes tres tu un une vers vos votre vous y`),
  es: list(`a al algo algunas algunos ante antes aquel aquella aqui asi aun aunque cada como con contra cual cuales
    cuando cuanto de del desde donde dos durante e el ella ellas ellos en entre era eran eres es esa esas ese eso esos
    esta estaba estado estan estar estas este esto estos fue fueron ha habia hace han hasta hay la las le les lo los mas
    me mi mientras mis mismo mucho muy nada ni no nos nosotros nuestra nuestro o os otra otras otro otros para pero poco
    por porque pues que quien quienes se sea segun ser si sido sin sobre solo son soy su sus tambien tan tanto te tiene
    tienen todo todos tras tu tus un una unas uno unos usted y ya yo`),
  it: list(`a ad agli ai al all alla alle allo anche ancora avere c che chi ci cioe come con contro cosa cui d da dagli
    dai dal dall dalla dalle dallo degli dei del dell della delle dello di dopo dove e ed era erano essere fra gli ha hai
    hanno ho i il in io l la le lei lo loro lui ma mi mia mio molto ne negli nei nel nell nella nelle nello no noi non
    nostra nostro o ogni per perche piu poi prima quale quali quando quanto quella quelle quelli quello questa queste
    questi questo qui se sei senza si sia siamo solo sono sopra sotto stata stato su sua sue sugli sui sul sull sulla
    sulle suo suoi tra tu tutti tutto un una uno vi voi`),
  pt: list(`a ao aos aquela aquele as ate cada com como da das de dela dele depois do dos e ela elas ele eles em entre
    era essa esse esta estao estar este estes eu foi foram ha isso isto ja la lhe mais mas me mesmo meu minha muito na
    nao nas nem no nos nossa nosso num numa o onde os ou para pela pelas pelo pelos por porque quais qual quando quem que
    sao se sem ser seu seus so sob sobre sua suas tambem te tem tinha todas todo todos tu um uma umas uns voce`),
  nl: list(`aan al alle als altijd andere ben bij daar dan dat de der deze die dit doch doen door dus een en er ge geen
    had hebben heb heeft hem het hier hij hoe hun ik in is ja je kan kon kunnen maar me meer men met mij mijn moet na
    naar niet niets nog nu of om omdat onder ons ook op over reeds te tegen toch toen tot u uit uw van veel voor waar
    waarom want waren was wat we welke werd wezen wie wij wil worden wordt zal ze zelf zich zij zijn zo zonder zou`),
  ru: list(`а без более больше будет будто бы был была были было быть в вам вас весь во вот все всего всех вы где да даже
    для до его ее если есть еще же за здесь и из или им их к как какая какие какой каких когда кто ли либо мне может мы на
    надо наш не него нее нет ни них но ну о об однако он она они оно от очень по под после при про с сам свой своего со
    так также такой там те тем то тоже той только том тот ты у уже хотя чего чей чем что чтобы чье эта эти это этого этой
    этом этот я сколько почему откуда куда чему кого`),
  ar: list(`في من الي علي عن مع هذا هذه ذلك تلك التي الذي الذين هو هي هم هن نحن انا انت ان او ثم لا ما لم لن قد كان كانت
    يكون تكون كل بعد قبل بين عند عندما حتي اذا كما ايضا به بها له لها فيه فيها منه منها و اي هل كيف متي اين ماذا لماذا كم
    غير الا اما`),
  hi: list(`का के की को से में मे पर और है हैं हे था थी थे हो होता होती होते ने यह वह ये वे इस उस इन उन जो कि तो भी ही
    एक या नहीं कर करना करने करता करती करते किया गया गई गए जा जाता जाती जाते रहा रही रहे लिए साथ तक अपना अपने अपनी कब क्या कौन
    कहां कहाँ क्यों कैसे कितना कितने कितनी किस जब तब अब`)
}

function list(words: string): ReadonlySet<string> {
  return new Set(words.split(/\s+/))
}
